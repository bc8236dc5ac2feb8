"""What runs at Amazon: Bedrock, its batch jobs, and SageMaker's endpoints."""
