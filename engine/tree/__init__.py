"""How do codes become a tree? Sorting, building, joining and checking the flat arrays of an A-Tree."""
