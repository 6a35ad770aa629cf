"""The market made from bookings, checked by hand on a file with the columns of the real one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jdpack.policies import registry
from jdpack.policies.spec import policies_of

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import hotel  # noqa: E402
import loss  # noqa: E402

HEADER = (
    "hotel,is_canceled,lead_time,arrival_date_year,arrival_date_month,arrival_date_week_number,"
    "arrival_date_day_of_month,stays_in_weekend_nights,stays_in_week_nights,adults,children,babies,"
    "meal,country,market_segment,distribution_channel,is_repeated_guest,previous_cancellations,"
    "previous_bookings_not_canceled,reserved_room_type,assigned_room_type,booking_changes,"
    "deposit_type,agent,company,days_in_waiting_list,customer_type,adr,"
    "required_car_parking_spaces,total_of_special_requests,reservation_status,"
    "reservation_status_date"
)
COLUMNS = HEADER.split(",")
RESORT, CITY = "Resort Hotel", "City Hotel"
BOOKED = [
    # hotel, year, month, day, weekend nights, week nights, adr
    (RESORT, 2015, "July", 1, 0, 2, 50.0),  # nights 0 and 1
    (CITY, 2015, "July", 6, 1, 2, 80.5),  # nights 5 to 7: across a week's border
    (RESORT, 2015, "July", 1, 0, 1, 0.0),  # free
    (CITY, 2015, "July", 1, 0, 0, 70.0),  # no night
    (CITY, 2015, "July", 2, 0, 1, -6.38),  # a rate below 0
    (RESORT, 2015, "July", 29, 10, 25, 100.0),  # nights 28 to 62: three periods of 30 days
    (CITY, 2017, "August", 31, 0, 1, 5400.0),  # night 792, worth more than the bound
]
KEPT = [0, 1, 5, 6]


def line(hotel: str, year: int, month: str, day: int, weekend: int, week: int, adr: float) -> str:
    given = {
        "hotel": hotel,
        "arrival_date_year": year,
        "arrival_date_month": month,
        "arrival_date_day_of_month": day,
        "stays_in_weekend_nights": weekend,
        "stays_in_week_nights": week,
        "adr": adr,
    }
    return ",".join(str(given.get(name, "NULL")) for name in COLUMNS)


def written(folder: Path, booked: list) -> Path:
    path = folder / "hotel_bookings.csv"
    path.write_text("\n".join([HEADER, *(line(*b) for b in booked)]) + "\n")
    return path


@pytest.fixture
def bookings(tmp_path: Path) -> hotel.Bookings:
    return hotel.Bookings.read(written(tmp_path, BOOKED))


def demanded(instance) -> list[dict[int, float]]:
    rows = instance.demands
    return [
        dict(zip(rows[i].indices.tolist(), rows[i].data.tolist(), strict=True))
        for i in range(rows.shape[0])
    ]


# --- the market ---------------------------------------------------------------------------


def test_bookings_of_no_night_or_no_rate_are_left_out(bookings) -> None:
    assert bookings.left_out == 3
    assert bookings.hotel.tolist() == [0, 1, 0, 1]
    assert bookings.arrival.tolist() == [0, 5, 28, 792]
    assert bookings.nights.tolist() == [2, 3, 35, 1]
    assert bookings.rate.tolist() == [BOOKED[i][-1] for i in KEPT]


def test_by_night(bookings) -> None:
    instance = bookings.market(1, 28)
    assert instance.demands.shape == (4, 1620)
    assert instance.supply.tolist() == [187.0] * 810 + [226.0] * 810
    assert (instance.max_demand, instance.bundle_size) == (1.0, 28)
    assert instance.values.tolist() == [100.0, 241.5, 2800.0, 5400.0]
    assert demanded(instance) == [
        {0: 1.0, 1: 1.0},
        {810 + 5: 1.0, 810 + 6: 1.0, 810 + 7: 1.0},
        dict.fromkeys(range(28, 56), 1.0),  # cut to 28 nights
        {810 + 792: 1.0},
    ]


def test_by_week(bookings) -> None:
    instance = bookings.market(7, 28)
    assert instance.demands.shape == (4, 232)  # 810 nights are 116 weeks, the last incomplete
    assert instance.supply.tolist() == [1309.0] * 116 + [1582.0] * 116
    assert (instance.max_demand, instance.bundle_size) == (7.0, 5)
    assert demanded(instance) == [
        {0: 2.0},
        {116: 2.0, 117: 1.0},
        {4: 7.0, 5: 7.0, 6: 7.0, 7: 7.0},
        {116 + 113: 1.0},
    ]


def test_by_thirty_days(bookings) -> None:
    instance = bookings.market(30, 28)
    assert instance.demands.shape == (4, 54)
    assert instance.supply.tolist() == [5610.0] * 27 + [6780.0] * 27
    assert (instance.max_demand, instance.bundle_size) == (28.0, 2)
    assert demanded(instance) == [{0: 2.0}, {27: 3.0}, {0: 2.0, 1: 26.0}, {27 + 26: 1.0}]


def test_without_a_bound_stays_and_values_are_whole(bookings) -> None:
    instance = bookings.market(30)
    assert instance.values.tolist() == [100.0, 241.5, 3500.0, 5400.0]
    assert demanded(instance)[2] == {0: 2.0, 1: 30.0, 2: 3.0}


@pytest.mark.parametrize("period", hotel.PERIODS.values())
@pytest.mark.parametrize("most", [1, 7, 14, 28, 30])
def test_public_bounds_hold_for_every_stay_and_are_reached(period: int, most: int) -> None:
    """Longest stays from every night on: every bound holds, and none is too large."""
    arrival = np.arange(hotel.NIGHTS)
    one = np.ones(len(arrival), int)
    instance = hotel.Bookings(0 * one, arrival, 99 * one, 1.0 * one).market(period, most)
    assert np.diff(instance.demands.indptr).max() == instance.bundle_size
    assert instance.demands.data.max() == instance.max_demand
    left = hotel.NIGHTS - arrival  # a stay ends when the calendar does
    assert instance.demands.sum(axis=1).ravel().tolist() == [np.minimum(most, left).tolist()]
    assert instance.values.tolist() == np.minimum(most, left).tolist()


def test_an_arrival_outside_the_calendar_is_refused(tmp_path: Path) -> None:
    late = (CITY, 2017, "September", 18, 0, 1, 70.0)
    with pytest.raises(SystemExit, match="1 arrivals are outside the calendar"):
        hotel.Bookings.read(written(tmp_path, [*BOOKED, late]))
    last = (CITY, 2017, "September", 17, 0, 9, 70.0)
    market = hotel.Bookings.read(written(tmp_path, [last])).market(1, 28)
    assert demanded(market) == [{1619: 1.0}] and market.values.tolist() == [70.0]


# --- runs ---------------------------------------------------------------------------------


def crowded(folder: Path) -> Path:
    """Twice as much demand as rooms in one week; half of it pays twice as much."""
    booked = [
        (RESORT, 2015, "July", 1, 2, 5, 100.0 if i % 2 else 50.0)
        for i in range(2 * hotel.ROOMS[RESORT])
    ]
    return written(folder, [*booked, (CITY, 2015, "July", 1, 0, 1, 5400.0)])


def test_a_run_is_measured_on_true_numbers(tmp_path: Path) -> None:
    hotels = hotel.Hotels(crowded(tmp_path), tmp_path)
    best = 187 * 700.0 + 5400.0
    assert hotels.optimum("week") == pytest.approx(best)
    for divisible in (True, False):
        cell = hotel.Cell("week", 28, "newton", math.inf, divisible, 1)
        found = hotel.run(hotels, cell, 1, 100)
        assert found.fits and found.rounds == 88
        assert found.clamped == 1
        # One cap of 187 stays free, and coins decide among equals.
        least = 0.9 if divisible else 0.8
        assert least < found.share <= 1.0 + 1e-9
        # The room in the city is free, so it is granted; within bounds it counts as 3000.
        assert found.within == pytest.approx((found.share * best - 2400.0) / (best - 2400.0))
        assert found.certified is not None and least < found.certified <= found.within
    with pytest.raises(hotel.TooLong, match="given up after 10 rounds"):
        hotel.run(hotels, cell, 1, 10)


def test_the_table_says_what_was_refused_and_resumes(tmp_path: Path, monkeypatch, capsys) -> None:
    command = [
        sys.executable,
        str(EXPERIMENTS / "hotel.py"),
        str(crowded(tmp_path)),
        *["--policies", "newton", "mwu-fixed:alpha=0.001", "--periods", "week"],
        *["--epsilon", "4", "--seeds", "2", "--results", str(tmp_path), "--most-nights", "28,3"],
    ]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [
        dict(zip(hotel.HEAD, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
        for row in first.stdout.splitlines()
        if row.startswith("| week")
    ]
    fixed = "mwu-fixed:alpha=0.001"
    assert [row["policy"] for row in lines] == ["newton", "newton", fixed, "newton", "newton"]
    assert [row["nights at most"] for row in lines] == ["28"] * 3 + ["3"] * 2
    assert {row["resources"] for row in lines} == {"232"}
    assert {row["supply"] for row in lines} == {"1,309 to 1,582"}
    assert lines.pop(2)["welfare share"].startswith("refused: mwu-fixed would take")
    for row in lines:
        assert row["feasible"] == row["true"] == "yes"
        assert row["rounds"] == "88" and row["runs"] == "2"
        least, share, within = (
            float(row[name].rstrip("%")) for name in ("least", "welfare share", "within bounds")
        )
        assert 0.0 < least <= share
        # With three nights of seven everybody fits, but gets little of what they asked for.
        assert share < 0.7 * within if row["nights at most"] == "3" else share > 0.9 * within
        assert all(row[name].endswith("%") for name in ("margin", "M", "F", "F*"))
        assert float(row["loss"].rstrip("%")) == pytest.approx(100.0 - share, abs=0.011)
    assert "0 bookings cut to 28 nights, then 1 clamped to a value of 3,000" in first.stdout
    assert "374 bookings cut to 3 nights, then 1 clamped" in first.stdout
    stored = json.loads((tmp_path / "hotel.json").read_text())
    assert [sorted(runs) for runs in stored.values()] == [["1", "2"]] * 4
    monkeypatch.setattr(sys, "argv", command[1:])
    hotel.main()
    again = capsys.readouterr()
    assert again.out == first.stdout
    assert "seed" in first.stderr and "seed" not in again.err


def test_without_the_file_one_sentence_says_where_it_is() -> None:
    environment = {key: value for key, value in os.environ.items() if key != hotel.VARIABLE}
    command = [sys.executable, str(EXPERIMENTS / "hotel.py")]
    for more in ([], ["missing.csv"]):
        found = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, env=environment
        )
        assert found.returncode == 2 and found.stdout == ""
        assert "doi:10.1016/j.dib.2018.11.126" in found.stderr and hotel.VARIABLE in found.stderr


def test_every_policy_is_in_the_table() -> None:
    assert {policy.name for policy in policies_of(hotel.POLICIES)} == set(registry.KINDS)


def test_a_certificate_that_is_not_true_says_no(tmp_path: Path) -> None:
    hotels = hotel.Hotels(crowded(tmp_path), tmp_path)
    cell = hotel.Cell("week", 28, "newton", 4.0, True, 1)
    run = hotel.Run(0.9, 0.8, 0.79, fits=True, rounds=88, seconds=1.0, clamped=1)

    def said(*runs: hotel.Run) -> tuple[str, str, str]:
        row = dict(zip(hotel.HEAD, hotel.row(hotels, cell, list(runs), ""), strict=True))
        return row["certified share"], row["true"], row["feasible"]

    assert said(run) == ("79.00%", "yes", "yes")
    assert said(run, replace(run, certified=0.81)) == ("80.00%", "NO", "yes")
    assert said(run, replace(run, fits=False)) == ("79.00%", "yes", "NO")
    assert said(replace(run, certified=None)) == ("none", "yes", "yes")


def test_results_beside_those_of_another_folder(tmp_path: Path) -> None:
    before, after = (loss.Store(tmp_path / f"{name}.json") for name in ("before", "after"))
    plain = hotel.Cell("week", 28, "newton", 4.0, False, 1)
    before.put(plain.key, {"1": {"share": 0.5}, "2": {"share": 0.7}})
    after.put(plain.key, {"1": {"share": 0.8}})
    after.put(replace(plain, excess=0.001).key, {"1": {"share": 0.9}})
    after.put(replace(plain, total=True).key, {"1": {"share": 0.9}})
    after.put(replace(plain, divisible=True).key, {"1": {"share": 0.9}})
    assert list(hotel.beside(before, after)) == [
        [plain.key, "40.00%", "20.00%", "50%"],
        [f"{plain.key} excess=0.001", "40.00%", "10.00%", "75%"],
        [f"{plain.key} total", "40.00%", "10.00%", "75%"],
    ]


def test_a_market_may_say_more(tmp_path: Path) -> None:
    hotels = hotel.Hotels(crowded(tmp_path), tmp_path)
    plain = hotel.Cell("30 days", 28, "newton", 4.0, False, 1)
    more = replace(plain, excess=0.001, total=True)
    assert more.key == f"{plain.key} excess=0.001 total"
    assert hotel.market_of(hotels, plain).extra == {}
    instance = hotel.market_of(hotels, more)
    assert instance.extra == {"excess_probability": 0.001, "max_total": [{"amount": 28.0}]}
    assert instance.market().excess_probability == 0.001
    # Two periods of up to 28 nights each, but 28 in total: half the squares.
    every = np.full(54, 1 / 54)
    half = hotel.market_of(hotels, plain).best_shape(every)[0] / math.sqrt(2.0)
    assert instance.best_shape(every)[0] == pytest.approx(half)
