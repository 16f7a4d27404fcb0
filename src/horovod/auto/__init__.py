"""Data-parallel training of scripts written for one process: ``horovodrun --auto -np 4 python train.py``.

``python -m horovod.auto`` initializes Horovod and changes PyTorch and Keras when the script imports them.
"""
