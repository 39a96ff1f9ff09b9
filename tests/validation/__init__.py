"""Measurements that a developer runs by hand on an idle machine; no test, and no command of `bench`."""
