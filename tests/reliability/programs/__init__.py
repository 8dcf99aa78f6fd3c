"""What the reliability tests run in processes of their own."""
