# The commands of the project. `make demo` and `make test` set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers

.PHONY: demo test check setup browser docs bench fuzz experiments soak lock clean

demo: $(VENV)/ready
	rm -rf demo
	$(BIN)/jdpack demo -o demo

# Uses up to four cores; the tests of one file run on the same core. BROWSER=no skips the tests of
# pages, which need Chromium.
BROWSER ?= yes
test: check $(if $(filter no,$(BROWSER)),,browser)
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(if $(filter no,$(BROWSER)),--ignore tests/browser)
	$(if $(filter no,$(BROWSER)),@echo "skipped: the tests of pages in tests/browser")

# Chromium for the tests of pages: finds it, or installs it.
browser: $(VENV)/ready
	@$(BIN)/python tests/browser/chromium.py

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "jdpack needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Builds the docs site in site/ (start at site/index.html). Any warning fails the build.
docs: $(VENV)/ready
	$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet --conf-dir docs --doctree-dir build/doctrees . site

# Speed and memory, compared with the limits of the machine and with other solvers. OR-Tools has its
# own environment. Takes about an hour and a quarter on 2 cores. Tables, JSON and plots go to
# results/bench, and an interrupted run resumes from there.
bench: $(VENV)/ready $(PEERS)/ready
	$(BIN)/python bench/speed.py --agents 10000000 --repeats 9
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/optimum.py
	$(BIN)/python bench/peers.py
	$(BIN)/python bench/parquet.py
	$(BIN)/python bench/cluster.py
	$(BIN)/python bench/scaling.py
	$(BIN)/python bench/serve.py

$(PEERS)/ready: bench/requirements-peers.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement bench/requirements-peers.txt
	touch $@

# Makes the tables of the docs from scratch.
experiments: $(VENV)/ready
	$(BIN)/python experiments/weight_leak.py
	$(BIN)/python experiments/audit.py
	$(BIN)/python experiments/utility.py
	$(BIN)/python experiments/loss.py
	$(BIN)/python experiments/small_markets.py
	$(BIN)/python experiments/table1.py
ifdef JDPACK_HOTEL_BOOKINGS
	$(BIN)/python experiments/hotel.py
else
	@echo "skipped: real hotel bookings; set JDPACK_HOTEL_BOOKINGS to the path of hotel_bookings.csv (doi:10.1016/j.dib.2018.11.126)"
endif

# Coverage-guided fuzzing of market files, tables, billboards, ledgers and run files. Inputs that
# break anything are kept in results/fuzz.
FUZZ_SECONDS ?= 300
fuzz: $(VENV)/ready
	$(BIN)/python fuzz/run.py all --seconds $(FUZZ_SECONDS)

# A thousand kill -9s at random moments, and one at every operation of a run; takes about 10 minutes.
soak: $(VENV)/ready
	$(BIN)/python soak/soak.py --kills 1000 --every 1

# Writes the lock again, with the newest versions that pyproject.toml allows.
lock:
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet ".[test]" hatchling editables
	.lock/bin/python -m pip freeze --exclude jdpack > requirements.lock
	rm -rf .lock

clean:
	rm -rf $(VENV) $(PEERS) demo results site dist build
