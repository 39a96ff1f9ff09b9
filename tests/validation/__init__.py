"""What a developer runs by hand; no test, and no command of `bench`. README.md lists it."""
