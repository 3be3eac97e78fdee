#!/usr/bin/env bash
# The client as a batch job. Submit it again, with any number of jobs, to go on where it
# was when its time was up:
#
#   sbatch slurm_batch_client.sh --queue debug --interface ib0 --jobs 4 \
#       --data /shared/rows --checkpoint /shared/run-7
#
#SBATCH --job-name=fit
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
# A minute before the time is up, so that the client saves the fit and ends.
#SBATCH --signal=B:TERM@60
# Of several that were submitted, one at a time.
#SBATCH --dependency=singleton

cd "$SLURM_SUBMIT_DIR" || exit
# exec: signals for the shell of the job reach the client.
exec python -u slurm_refilling.py "$@"
