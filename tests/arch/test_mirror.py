"""Test files mirror the tree: each module has a test file of its name."""

from support.source_tree import ROOT, module_files

# Modules whose behaviour is tested where it shows, with the place.
TESTED_ELSEWHERE: dict[str, str] = {}


def test_every_module_has_its_tests():
    names = {p.name for p in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        name
        for name in module_files()
        if f"test_{name.rpartition('.')[2]}.py" not in names and name not in TESTED_ELSEWHERE
    ]
    assert missing == []


def test_the_list_is_true():
    modules = module_files()
    for name, place in TESTED_ELSEWHERE.items():
        assert name in modules
        assert (ROOT / place).exists(), place
