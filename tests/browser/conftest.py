"""The browser is a fixture here."""

from tests.browser.chromium import browser  # noqa: F401
