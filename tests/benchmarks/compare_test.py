"""`python -m benchmarks.compare`: the best of each program in two checkouts, and clear errors."""

from benchmarks import compare


class Fake:
    """A checkout with given programs, whose calls take given seconds in turn."""

    def __init__(self, names, seconds):
        self.names, self.left = names, {name: iter(each) for name, each in seconds.items()}

    def answer(self):
        return self.names

    def seconds(self, name):
        return next(self.left[name])

    def close(self):
        self.names = []


def test_the_best_call_of_programs_that_both_have(monkeypatch, tmp_path):
    before = Fake(["old", "sac"], {"sac": [4.0, 2.0, 3.0]})
    after = Fake(["sac", "new"], {"sac": [1.0, 5.0, 5.0]})
    both = iter([before, after])
    monkeypatch.setattr(compare, "Checkout", lambda root, only: next(both))
    (row,) = compare.compare(tmp_path, ["sac"], repeats=3)
    assert row == {"name": "sac", "before_s": 2.0, "after_s": 1.0, "ratio": 2.0}
    assert before.names == after.names == []  # closed


def test_a_folder_that_is_no_checkout_is_an_error(tmp_path, capsys):
    assert compare.main([str(tmp_path)]) == 2
    assert "is no checkout of made" in capsys.readouterr().err
