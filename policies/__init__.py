"""Decisions and shared limits: may it run, what does it cost, again or not, which routes."""
