"""The table of alphas: it runs, and what mwu-adaptive picks beats the largest one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import alphas


def test_the_table_shows_what_each_alpha_loses(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(alphas, "MARKETS", {"single": 300})
    monkeypatch.setattr(alphas, "EPSILONS", (4.0,))
    given = ["alphas.py", "--results", str(tmp_path), "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", given)
    alphas.main()
    *_, row = capsys.readouterr().out.strip().split("\n")
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["single", "300", "1", "4"]
    picked, *others = (float(cell.split("%")[0]) for cell in cells[4:9])
    assert picked < others[-1]  # 0.2, which is far too large
