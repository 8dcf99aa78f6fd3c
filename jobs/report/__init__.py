"""What does the HTML report show? Its figures, charts and page."""
