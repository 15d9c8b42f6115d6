"""Invert one client's gradient: any attack on any model and data.

    # a photograph in about 20 seconds on two cores: 39 to 58 dB, by the image
    jaxleak invert
    # four images behind one gradient of a ResNet, for three seeds
    jaxleak invert --model resnet10 --width 16 --batch-size 4 --seeds 0 1 2
    # an update from elsewhere, whose images nobody knows
    jaxleak invert --payload u.npz --weights w.safetensors --batch-size 4
    # an upload of federated averaging: five epochs over two batches of two
    # images, in new orders, with the labels granted
    jaxleak invert --data cifar10 --batch-size 2 --local-steps 2 \\
        --local-epochs 5 --reshuffle --learning-rate 0.1 --labels given
    # the files of an update, from a simulated client
    jaxleak invert --batch-size 4 --save-payload u.npz \\
        --save-weights w.safetensors
    # three minutes an image, whose brightness stays open
    jaxleak invert --data cifar10 --model resnet10 --iterations 3500 \\
        --out runs/resnet
    # five seconds an image: 45 to 50 dB, or 24 after the 300 iterations of DLG
    jaxleak invert --data cifar10 --attack dlg --model lenet --iterations 1200 \\
        --seeds 10 11 12 13
    # a closed form, in seconds, most of them to compile the client: 87 dB
    jaxleak invert --data cifar10 --attack patch_embedding --model vit_tiny \\
        --seeds 0 1 2 3
    # a deep network, ten to fifteen minutes an image: SSIM .34, 1.00 and .93,
    # while the PSNR depends on tints
    jaxleak invert --data cifar10 --pool 512 --attack row_space \\
        --model resnet34 --iterations 4250 --seeds 4 5 6
    # four images behind one of its gradients, half an hour of a core
    jaxleak invert --data cifar10 --pool 512 --attack row_space \\
        --model resnet34 --batch-size 4 --far --iterations 20380 --seeds 0
    # attackers with public images, on which they train a generator
    jaxleak invert --attack rog --data digits --batch-size 4
    jaxleak invert --attack ggl --data mnist --public-data synthetic \\
        --iterations 300
    # an attack and a defense of your own (docs/your_attack.md)
    jaxleak invert --attack mine.py:my_attack --defense mine.py:my_defense \\
        --strength 0.1
    # thirty-two starts, shared by two devices
    jaxleak invert --attack dlg --model lenet --restarts 32 --devices 2

A captured payload is a file that `jaxleak.capture.save` wrote, or an npz file with one float array per parameter,
named by its path (`conv_0/kernel`), in jaxleak's layout (HWIO convolutions, (in, out) dense kernels), with the weights
as safetensors.
There is then no truth, and only the attacker's own measures are printed. Runs resume; `--fresh` starts over.

With `--restarts 2` or more, the two best of the independent starts are compared, and the SSIM between their images is
reported as `agreement`, the mean and of each image: evidence that an image is right which needs no truth
(docs/agreement.md says from which value on). `gradient_matched` is no such evidence. Where it is matched,
`undetermined` is the share of images in whose place another one explains the update as well: there, starts may agree
on what the prior prefers.
"""
