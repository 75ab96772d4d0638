"""One migration a file, named by its revision. A released one is never edited."""
