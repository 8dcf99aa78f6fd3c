"""Tests that count: each runs for minutes by one command, prints its counts and records them."""
