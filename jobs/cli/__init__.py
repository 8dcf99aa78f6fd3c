"""What does the user type and read? The command line, its options and its tables."""
