"""What are the true neighbours? Brute force over rows that stream by."""
