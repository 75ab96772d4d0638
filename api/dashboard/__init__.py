"""The tuning history as pages under `/dashboard`, for somebody who wants to look rather than read. It never writes."""
