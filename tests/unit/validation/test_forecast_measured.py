"""The forecast held against real trainings between namespaces, whose computation the upper bound has measured."""

import json

import pytest

from tests import forecasts, records
from tests.shown import text_of
from tests.validation.forecast import figure, measured, result, settings
from tests.validation.forecast.__main__ import main

PROGRAMS = {"ddp": 40.0, "horovod": 40.0, "independent": 50.0}  # images per second; the profile's device makes 100


def runs(folder, programs=PROGRAMS, label: str | None = forecasts.LABEL, **options) -> str:
    """A folder with a comparison of two rounds between two nodes."""
    told = {mode: {"mode": mode, "throughput": [speed, speed], **records.shape(mode, 2)} for mode, speed in
            programs.items()}  # fmt: skip
    for record in records.suite_records("compare", told, rounds=2, **options):
        data = forecasts.one_thread(record.data) | ({"network": {"label": label}} if label else {})
        (place := folder / record.run_id).mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(data))
    return str(folder)


def checked(folder) -> str:
    """A folder with the profiles, and one emulated setting."""
    folder.mkdir()
    for model in settings.MODELS:
        (folder / f"profile-{model}.json").write_text(json.dumps(forecasts.asked().record.data))
    profiles = result.read_profiles(folder)
    setting = settings.drawn(profiles)[0]
    row = {"name": setting.name, "model": setting.model, "engine": setting.engine.name, "nodes": setting.nodes,
           "rate_mbit": setting.rate_mbit, "dilate": 4, "made_with": setting.made_with, "steps_s": [1.0] * 3,
           "runs_s": [1.0], "cpu_share": 0.1, "emulated": 1}  # fmt: skip
    environment = forecasts.asked().record.environment
    data = result.judged({"rows": [row], "environment": environment}, profiles)
    result.write(folder, data)
    return str(folder)


def test_the_computation_takes_as_long_as_the_upper_bounds(tmp_path):
    """64 images per step: 0.64 s on the profile's device for 32, of which independent processes need 1.28."""
    known = {"resnet18": forecasts.asked().record}
    rows, left_out = measured.rows_of(runs(tmp_path / "runs"), known)
    assert [(row["mode"], row["nodes"], row["rate_mbit"], row["rounds"]) for row in rows] == [
        ("ddp", 2, 1000, 2), ("horovod", 2, 1000, 2)]  # fmt: skip
    alone = forecasts.asked().profile.mean_step_s
    assert rows[0]["computation"] == pytest.approx(64 / 50.0 / alone, rel=0.02) and not left_out
    assert rows[0]["measured_s"] == pytest.approx(64 / 40.0, rel=0.02)
    (ddp, _) = measured.judged(rows, {"resnet18": forecasts.asked().profile})
    least = 64 / 50.0  # what is computed
    assert least < ddp["predicted_s"] < least + 0.4 and ddp["off"] == ddp["predicted_s"] / ddp["measured_s"] - 1


def test_real_steps_stand_in_the_file_and_the_picture_and_stay_there(tmp_path):
    folder = checked(tmp_path / "check")
    words = [folder, "--only-judge"]
    assert main([*words, f"--measured={runs(tmp_path / 'runs')}"]) == 0
    before = result.read(tmp_path / "check")
    assert main(words) == 0
    assert result.read(tmp_path / "check") == before and len(before["measured"]) == 2
    assert "namespaces (2)" in text_of(figure.draw(before))


@pytest.mark.parametrize(("options", "named"), [
    ({"label": None}, "namespaces"),
    ({"programs": {"ddp": 40.0, "horovod": 40.0}}, "upper bound"),
    ({"model": "mobilenet_v2"}, "mobilenet_v2"),
    ({"model": "resnet50"}, "MODEL=resnet50"),
    ({"precision": "bf16"}, "PRECISION=bf16"),
])  # fmt: skip
def test_runs_that_belong_to_no_profile_are_refused_in_one_line(options, named, tmp_path, capsys):
    folder = checked(tmp_path / "check")
    code = main([folder, "--only-judge", f"--measured={runs(tmp_path / 'runs', **options)}"])
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1 and named in error
