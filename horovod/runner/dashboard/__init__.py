"""The live page: one page on loopback that shows a job while it runs."""
