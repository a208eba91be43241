"""Errors that the command line tells apart by their exit code."""

from __future__ import annotations


class UsageError(ValueError):
    """A request that cannot be served as asked (exit code 2); any other failure is exit code 1."""

    exit_code = 2
