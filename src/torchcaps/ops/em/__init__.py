"""EM routing of matrix capsules (Hinton, Sabour & Frosst 2018)."""
