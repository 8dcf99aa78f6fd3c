"""What does an unfinished job keep on disk? Its record, lock, sorted runs and partitions of the tree."""
