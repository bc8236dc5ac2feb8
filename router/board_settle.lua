-- The settle of the tenant's quota, for scripts that carry its keys and arguments behind their own.
local function settle_rest(own_keys, own_args)
  if #KEYS <= own_keys then return end
  local keys, argv = {}, {}
  for i = own_keys + 1, #KEYS do keys[#keys + 1] = KEYS[i] end
  for i = own_args + 1, #ARGV do argv[#argv + 1] = ARGV[i] end
  local t = redis.call('TIME')
  quota_settle(keys, argv, t[1] * 1000000 + t[2])
end
