"""One module a page: the question that it answers, what may be asked for in its address, and what it shows."""
