"""docs/ordering.md: every rule names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_rule_names_its_tests():
    """Each numbered rule names at least one test, and each test it names is defined in tests/."""
    text = (ROOT / "docs/ordering.md").read_text()
    rules = re.findall(r"(?ms)^\d+\. .*?(?=^\d+\. |^## |\Z)", text)
    defined = set(re.findall(r"def (test_\w+)\(", "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))))
    assert len(rules) > 15
    for rule in rules:
        named = re.findall(r"`(test_\w+)`", rule)
        assert named or not re.search("MUST|SHOULD", rule), rule
        assert set(named) <= defined, rule
