"""What a job tells of itself while it runs, and when it hangs or ends: notes between its ranks, and who hears them."""
