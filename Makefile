# The commands of the project. Each sets up the environment that it needs, from a lock of its own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .venv-demo
DOCS := .venv-docs
PEERS := .venv-peers

# Where Python may not keep the modules that it compiles, every process compiles all of them again: a
# command then takes three times as long to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check kernels modules setup browser postgresql spark docs build bench fuzz experiments soak lock clean

demo: $(DEMO)/ready
	rm -rf demo
	$(DEMO)/bin/jdpack demo -o demo

# In two processes more than there are cores, because some tests wait, and at most four; each file of
# tests stays in one process. BROWSER=no leaves out the tests of pages, which need Chromium,
# POSTGRESQL=no those that need PostgreSQL, and SPARK=no those that need Java.
BROWSER ?= yes
POSTGRESQL ?= yes
SPARK ?= yes
PROCESSES = $$(($$(getconf _NPROCESSORS_ONLN) + 2))
test:
	@$(MAKE) --no-print-directory --jobs --output-sync check kernels modules $(if $(filter no,$(BROWSER)),,browser) $(if $(filter no,$(POSTGRESQL)),,postgresql) $(if $(filter no,$(SPARK)),,spark)
	$(if $(filter no,$(POSTGRESQL)),JDPACK_POSTGRESQL=no )$(if $(filter no,$(SPARK)),JDPACK_JAVA=no )$(BIN)/pytest --numprocesses $(PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(if $(filter no,$(BROWSER)),--ignore tests/browser)
	$(if $(filter no,$(BROWSER)),@echo "skipped: the tests of pages in tests/browser")
	$(if $(filter no,$(POSTGRESQL)),@echo "skipped: the tests that need PostgreSQL")
	$(if $(filter no,$(SPARK)),@echo "skipped: the tests of Spark")

# What the tests compile: once, not in every process.
kernels: $(VENV)/ready
	$(BIN)/python tests/compile_kernels.py
modules: $(VENV)/ready
	$(BIN)/pytest --collect-only --quiet > /dev/null

# Chromium for the tests of pages: the one that is there, or else one that is installed.
browser:
	@$(PYTHON) tests/browser/chromium.py

# PostgreSQL for the tests of databases: the one that is there, or else one that is installed.
postgresql:
	@$(PYTHON) tests/postgresql.py

# Java for the tests of Spark: the one that is there, or else one that is installed.
spark:
	@$(PYTHON) tests/spark.py

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/ready

# pip checks the hashes of all it installs. Python compiles what it imports, so pip need not compile
# everything in advance. Two pips install one half of a lock each, because pip uses a single core; the
# last command checks that nothing is missing.
$(DEMO)/ready: requirements/demo.lock
$(DOCS)/ready: requirements/docs.lock
$(VENV)/ready: requirements/test.lock
$(DEMO)/ready $(DOCS)/ready $(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "jdpack needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(@D)
	half() { awk "/^[^ ]/ { n++ } n % 2 == $$1" $(filter %.lock,$^) | $(@D)/bin/python -m pip install \
	  --quiet --no-compile --no-deps --require-hashes --requirement /dev/stdin; }; \
	half 0 & half 1 && wait $$!
	$(@D)/bin/python -m pip install --quiet --no-compile --no-deps --no-build-isolation --editable .
	$(@D)/bin/python -m pip check
	touch $@

# The site of the docs, in site/; any warning fails. See site/index.html.
docs: $(DOCS)/ready
	$(DOCS)/bin/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet --conf-dir docs --doctree-dir build/doctrees . site

# The wheel and the sdist, in dist/. The same sources give the same bytes: the lock names the version of
# the build tool.
build: $(DEMO)/ready
	rm -rf dist
	$(DEMO)/bin/python -m hatchling build

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
	$(BIN)/python bench/databases.py
	$(BIN)/python bench/warehouse.py
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
	$(BIN)/python experiments/audit_faults.py --jobs 2
	$(BIN)/python experiments/utility.py
	$(BIN)/python experiments/alphas.py
	$(BIN)/python experiments/loss.py
	$(BIN)/python experiments/true_floor.py
	$(BIN)/python experiments/random_markets.py
	$(BIN)/python experiments/epsilon_curve.py
	$(BIN)/python experiments/flights.py
	$(BIN)/python experiments/people.py
	$(BIN)/python experiments/small_markets.py
	$(BIN)/python experiments/table1.py
ifdef JDPACK_HOTEL_BOOKINGS
	$(BIN)/python experiments/hotel.py --excess 0,0.001 --total
else
	@echo "skipped: real hotel bookings; set JDPACK_HOTEL_BOOKINGS to the path of hotel_bookings.csv (doi:10.1016/j.dib.2018.11.126)"
endif
	$(BIN)/python experiments/plan_check.py

# Coverage-guided fuzzing of market files, tables, billboards, ledgers and run files. Inputs that
# break anything are kept in results/fuzz.
FUZZ_SECONDS ?= 300
fuzz: $(VENV)/ready
	$(BIN)/python fuzz/run.py all --seconds $(FUZZ_SECONDS)

# A thousand kill -9s at random moments, and one at every operation of a run; takes about 10 minutes.
soak: $(VENV)/ready
	$(BIN)/python soak/soak.py --kills 1000 --every 1
	$(BIN)/python soak/soak.py --kills 200 --every 5 --ledger postgresql

# Write the locks again, with the newest versions that pyproject.toml allows; with KEEP=yes, what is in them
# keeps its version. Run it on the oldest Python that jdpack supports.
lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python requirements/lock.py $(if $(KEEP),--keep)
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) $(DEMO) $(DOCS) $(PEERS) demo results site dist build
