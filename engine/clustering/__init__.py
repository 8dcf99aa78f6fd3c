"""Which centroid is nearest? Products of rows and words, and k-means."""
