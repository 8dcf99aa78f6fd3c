"""What is a committed index on disk? Its format, manifest, files, reader and writer."""
