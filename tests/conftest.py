import os

# Read by torch when it is first imported: two tests at once must not fight for cores, and one thread sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
