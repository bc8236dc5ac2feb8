"""One module for each family of paths: parse, call one thing, answer."""
