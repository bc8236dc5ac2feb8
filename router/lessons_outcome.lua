-- How well a job was answered. ARGV: job, tier, quality, by whom, 1 if only where nothing is known, ms for which it waits
--   for a job that is not answered yet (0: it does not). Returns 0 when nothing is known of the job.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  if ARGV[6] == '0' then return 0 end
  redis.call('SET', early(ARGV[1]), ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4], 'PX', ARGV[6])
  return 1
end
if ARGV[5] == '1' and redis.call('HEXISTS', KEYS[4], ARGV[1] .. ' ' .. ARGV[2]) == 1 then return 1 end
note(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1
