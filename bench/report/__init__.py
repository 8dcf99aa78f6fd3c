"""Tables and plots, made from `bench/results` alone."""
