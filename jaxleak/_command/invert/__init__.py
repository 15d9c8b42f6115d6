"""Invert one client's gradient: any attack on any model and data.

    jaxleak invert
    jaxleak invert --attack inverting_gradients --model resnet10 --width 16 --batch-size 4 --seeds 0 1 2
    jaxleak invert --data cifar10 --model resnet10 --iterations 3500 --out runs/resnet
    jaxleak invert --data cifar10 --attack dlg --model lenet --iterations 1200 --seeds 10 11 12 13
    jaxleak invert --data cifar10 --model resnet10 --width 16 --activation sigmoid --batch-size 4 \\
        --labels calibrated --iterations 1500 --generator --tv 0.001 --seeds 3 4 5
    jaxleak invert --data cifar10 --attack patch_embedding --model vit_tiny --seeds 0 1 2 3
    jaxleak invert --data cifar10 --pool 512 --attack row_space --model resnet34 --iterations 4250 \\
        --seeds 4 5 6
    jaxleak invert --data cifar10 --pool 512 --attack row_space --model resnet34 --batch-size 4 --far \\
        --iterations 20380 --seeds 0
    jaxleak invert --attack rog --data digits --batch-size 4
    jaxleak invert --attack ggl --data mnist --public-data synthetic --iterations 300
    jaxleak invert --attack dlg --model lenet --restarts 32 --devices 2
    jaxleak invert --batch-size 4 --save-payload update.npz --save-weights model.safetensors
    jaxleak invert --payload update.npz --weights model.safetensors --model convnet --batch-size 4

The first line takes about 20 seconds on two cores and should print a PSNR above 30 dB. The third takes three minutes an
image; its PSNR depends on how bright the image is, up to one factor it is above 40 dB. The fourth takes five seconds an
image and should print 38 to 49 dB, or 24 after the 300 iterations of DLG's paper. The fifth takes three minutes a seed:
25 to 26 dB, and 28 to 30 without the generator.

A payload captured from another framework is an npz file with one float array per parameter, named by its path
(`conv_0/kernel`), in jaxleak's layout (HWIO convolutions, (in, out) dense kernels), with the weights as safetensors.
There is then no truth, and only the attacker's own measures are printed. The last two lines make such a pair of files
from a simulated client, and attack it. Runs resume; `--fresh` starts over.

With `--restarts 2` or more, the two best of the independent starts are compared, and the SSIM between their images is
reported as `agreement`, the mean and of each image: evidence that an image is right which needs no truth
(docs/agreement.md says from which value on).
`gradient_matched` is no such evidence.

The sixth takes a few seconds an image, nearly all of them to compile the client, and should print 87 dB: that
attack on vision transformers has a closed form. The seventh, for deep networks, takes two to four minutes an image
and should print an SSIM of .76, the mean of .34, 1.00 and .93; its PSNR depends on tints. The eighth, four images
behind one gradient, takes half an hour or more on one core and should print .86. The attacks ggl and rog are granted
public images beyond the update, `--public-data`, and train a generator on them.
"""
