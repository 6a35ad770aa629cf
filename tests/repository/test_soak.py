"""A sample of the soak, and tests that its checks catch what is broken on purpose."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
KILLS, EVERY, SEED = 14, 53, 5


def sample(*arguments: object) -> dict:
    """Run the sample in its own process, which has no threads and so may fork."""
    script = [sys.executable, str(ROOT / "tests" / "soak_sample.py"), *map(str, arguments)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found():
    return sample(KILLS, EVERY, SEED)


def test_kills_do_no_harm(found):
    counts = found["sample"]
    assert counts["random kills"] >= KILLS
    kills, interrupts = Counter(), Counter()
    for key, count in counts.items():
        what, command, *_ = [*key.split(", "), ""]
        if what in ("kills", "Ctrl-C"):
            (kills if what == "kills" else interrupts)[command] += count
    assert sum(kills.values()) >= 30 and {"solve", "resume", "ledger"} <= set(kills)
    assert interrupts["solve"] >= 4 and counts["how, by Ctrl-C, twice"] >= 2
    swept = {key for key in counts if key.startswith("every, ")}
    assert len(swept) == 9 and counts["how, with the power cut"] >= 5
    attacks = {key: count for key, count in counts.items() if key.startswith("backups put back")}
    assert len(attacks) == 4 and min(attacks.values()) >= 12, attacks
    assert counts["folders from a backup, refused"] >= 10
    assert counts["runs finished"] >= 20 and counts["ledger entries checked"] >= 200


BROKEN = [
    *("no_journal", "journal_not_synced", "resume_posts_what_is_not_synced"),
    *("reserves_after_the_rounds", "resume_does_not_reserve", "reserves_again_under_another_name"),
    *("knows_no_limit", "cancels_what_has_begun", "run_file_in_pieces", "private_files_for_all"),
    *("gives_everything_to_everybody", "allocation_of_another_billboard"),
    *("leaves_half_written_files", "takes_a_header_without_its_end"),
    *("forgets_what_it_reserved", "any_folder_resumes", "notes_after_the_line_is_public"),
    "resume_trusts_a_hash_that_is_not_synced",
    *("no_lock", "refunds_what_has_begun", "trusts_the_folder"),
]


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(found, name):
    control = found["controls"][name]
    assert re.search(control["says"], control["broken"]), control["broken"]
    assert control["honest"] == ""  # at the same strikes


def test_all_that_is_broken_is_named(found):
    assert set(BROKEN) == set(found["controls"])


def test_kills_do_no_harm_to_a_ledger_in_postgresql(server):
    """A smaller sample: kills, and the attacks with backups. `make soak` sweeps, too."""
    found = sample(8, 0, SEED, "postgresql")
    counts = found["sample"]
    assert counts["random kills"] >= 8 and counts["runs finished"] >= 1
    attacks = {key: count for key, count in counts.items() if key.startswith("backups put back")}
    assert len(attacks) == 4 and min(attacks.values()) >= 1, attacks
    assert counts["ledger entries checked"] >= 50
    says = "a copy of a run that is at work resumed|refused for another reason"
    assert re.search(says, found["broken"]), "without its lock"
    assert found["honest"]
