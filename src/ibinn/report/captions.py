"""How to read the figures of a run, for readers who never saw the paper."""

from typing import NamedTuple


class Caption(NamedTuple):
    """A figure's heading, how to read it, and what it shows for those who cannot see it.

    {things} stands for images, or for the rows of a table.
    """

    title: str
    text: str
    alt: str


CAPTIONS = {  # in the order of the page
    "calibration": Caption(
        "Do its probabilities hold?",
        "Each point gathers the cases in which it gave a class about the probability on the horizontal axis; its "
        "height is the share in which that class was the right one. Below the dotted line the model is too sure, "
        "above it too cautious. Points within the grey boxes are as good as perfect on a test set of this size.",
        "Share of right answers against stated probability, beside the line of perfect calibration",
    ),
    "histograms": Caption(
        "How strange does each set look?",
        "How often each value of the strangeness score occurs among the test {things} and among strange inputs, "
        "with a panel for each kind of these. The further right a set lies of the test {things}, the easier it is "
        "to notice; where the two overlap, strange inputs pass as familiar ones.",
        "Histograms of the strangeness score of the test {things} and of each set of strange inputs",
    ),
    "roc": Caption(
        "Detection against false alarms",
        "Each curve runs through all alarm levels: the share of strange inputs that are flagged, against the "
        "share of familiar ones flagged by mistake. The closer it comes to the top left corner the better; the "
        "dotted line is guessing. The area below a curve is its AUROC.",
        "Detection rate against false alarm rate, a curve for each set of strange inputs",
    ),
    "latent": Caption(
        "Where it puts its inputs",
        "Test {things} in the model's inner space, coloured by their true class, with the centre of each class "
        "marked. Those far from their own centre, or between two, are the doubtful ones. It is a flat shadow of a "
        "space with many more dimensions: classes that overlap here may still lie apart.",
        "Test {things} in two dimensions of the latent space, with the centres of the classes",
    ),
    "samples": Caption(
        "What it thinks each class looks like",
        "Images that the model made up, with a row for each class; they are not copies from the data. Clean and "
        "varied rows mean that it knows what the class looks like; what is blurred or odd it has not grasped.",
        "Images drawn from the model, in a row for each class",
    ),
    "interpolations": Caption(
        "From one image to another",
        "The first and the last image of a row are test images; those between lie on the straight line between "
        "them in the model's inner space. Small and believable steps mean that this space is well ordered.",
        "Rows of images that change step by step from one test image into another",
    ),
    "trajectory": Caption(
        "What happens when an input drifts",
        "One test image is changed more and more, as the small pictures show, and its numbered way through the "
        "model's inner space is drawn above them. The p-value tells how usual the image still looks; it should "
        "fall as the change grows, and below the alarm level the image is flagged.",
        "An image changed step by step, its path through the latent space and the p-value of each step",
    ),
    "training": Caption(
        "How the training went",
        "The losses after each pass through the data, for the training and for the validation part. They should "
        "fall and then level off. Where validation rises again while training still falls, the model has begun to "
        "learn by heart.",
        "Losses and validation figures after each epoch of training",
    ),
}
