"""Images: horses and their background, poses of people, graphs of superpixels."""
