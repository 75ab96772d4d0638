"""What an inspection is made of: files, headers, names, formats, quantisation lists, and the GEMMs they add up to."""
