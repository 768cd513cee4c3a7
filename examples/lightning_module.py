"""A LightningModule around capsule layers, trained by Lightning's Trainer: needs `pip install pytorch-lightning`."""

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchcaps.data import load_data
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.losses import margin_loss


class CapsuleClassifier(LightningModule):
    """Digits of 8×8."""

    def __init__(self, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.features = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU())
        self.primary = PrimaryCaps(32, types=8, dim=8, kernel_size=3, stride=2, padding=1)
        self.classes = DenseCaps(8 * 4 * 4, 8, 10, 16)

    def forward(self, images):
        return self.classes(self.primary(self.features(images)))

    def training_step(self, batch, index):
        images, targets = batch
        return margin_loss(self(images).activation, targets).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)


def train(epochs=3):
    """The share of the test digits that is right."""
    torch.manual_seed(0)
    data, module = load_data("digits", validation=0), CapsuleClassifier()
    loader = DataLoader(TensorDataset(data.train.images / 255, data.train.targets), batch_size=32, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **quiet).fit(module, loader)
    with torch.no_grad():
        found = module.eval()(data.test.images / 255).activation.argmax(-1)
    return (found == data.test.targets).float().mean().item()


if __name__ == "__main__":
    print(f"{train():.2%} of the test digits right")
