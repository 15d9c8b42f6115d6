"""CAFE at scale: recover hundreds of private samples of a vertical federation from its aggregated gradients.

    jaxleak demo                      # 100 embedded photographs of faces, about a minute
    jaxleak demo --preset mnist       # N = 800, K = 40; needs JAXLEAK_DATA_DIR
    jaxleak demo --preset cifar10     # N = 800, K = 40; needs JAXLEAK_DATA_DIR
    jaxleak demo --preset scale       # Steps I and II at N = 1,000, 3,000 and 10,000
    jaxleak demo --preset paper       # the paper's gradient descent instead of the exact solver
    jaxleak demo --devices 4          # tables and images shared out among four devices

Prints and stores the metrics, a contact sheet (private images above their reconstructions; framed grey tiles where the
attack says that it has no answer) and the attacker's certificate against the true PSNR. `demo` should print a mean PSNR
above 100 dB, more than .95 of the samples answered and all labels right. Killed at any moment, the same command
continues and ends with the same reconstruction; `--fresh` starts over. SIGTERM and Ctrl-C save first. Several processes
share a run with `--distributed` (Slurm, Open MPI, Kubernetes) or `--coordinator`; --out is then on a file system that
all of them see.
"""
