"""What are the true neighbours? Brute force over a stream of rows."""
