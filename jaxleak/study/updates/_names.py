"""Names that options and their help list before the engine is imported; tests hold them to what the engine has."""

#: Attacks that train a generator on public images.
GENERATIVE = ("ggl", "rog")
#: Every attack on one client's update.
ATTACKS = (
    "dlg", "idlg", "inverting_gradients", "sapag", "gradinversion", "bayes", "fedleak", "row_space", "fedleak_paper",
    "fedleak_upstream", *GENERATIVE, "patch_embedding",
)  # fmt: skip
#: Classifiers that are built in.
MODELS = (
    "lenet", "convnet", "convnet_ig", "mlp", "resnet10", "resnet10_x3", "resnet10_x5", "resnet18", "resnet34",
    "densenet121", "mobilenet_v2", "vit_tiny", "vit_small",
)  # fmt: skip
#: Non-linearities that replace a model's own.
ACTIVATIONS = ("relu", "relu6", "leaky_relu", "sigmoid", "tanh", "gelu", "silu", "softplus")
#: Rules that read labels off an update.
LABEL_RULES = (
    "single_label", "yin", "sum_rule", "counting_rule", "fedleak", "corrected_counts", "bias_rule", "calibrated",
    "random",
)  # fmt: skip
#: Defenses of one client's upload.
DEFENSES = (
    "soteria", "outpost", "quantization", "stochastic_quantization", "guardian", "dp_sgd", "adaptive_dp", "dp_soteria",
    "adaptive_dp_soteria", "dp_update", "gaussian", "laplace", "magnitude_noise", "cancelling_noise", "sparsification",
    "error_feedback", "feature_dropout", "withhold_top", "encrypt_top", "encrypt_bottom",
)  # fmt: skip
