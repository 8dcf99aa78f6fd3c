"""The algorithms: numpy arrays in, numpy arrays out. No files, no scheduler, no clock."""
