"""Published measurements: read from an installed package, and what they say of a problem."""
