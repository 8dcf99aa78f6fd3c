"""Which file formats are read? One module for each format, and what flat and chunked formats share."""
