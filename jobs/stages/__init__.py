"""What does each stage of a build do? train, encode, sort, build, commit."""
