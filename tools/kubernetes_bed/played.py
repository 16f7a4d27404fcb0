"""Program that runs the simulated components of the cluster.

python -m tools.kubernetes_bed.played ADDRESS PORT CERTIFICATE
"""

import sys

from tools.kubernetes_bed import names, proxy
from tools.kubernetes_bed.controller import Controller


def main() -> int:
    address, port, certificate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    proxy.serve(address, port, certificate)
    names.serve(address)
    Controller().run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
