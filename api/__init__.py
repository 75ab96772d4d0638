"""The faces: HTTP app, command line."""
