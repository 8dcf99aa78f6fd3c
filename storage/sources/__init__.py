"""Where do vectors and ids come from? One interface for every source, read by row range."""
